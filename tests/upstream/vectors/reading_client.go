package vectors

import (
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// clientConfig is what the kubelet's client takes from its kubeconfig.
func clientConfig(config *clientcmdapi.Config) (any, error) {
	client, err := clientcmd.NewDefaultClientConfig(*config, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, err
	}
	found := map[string]any{
		"host":       client.Host,
		"token":      client.BearerToken,
		"tokenFile":  client.BearerTokenFile,
		"username":   client.Username,
		"password":   client.Password,
		"insecure":   client.Insecure,
		"serverName": client.ServerName,
		"certFile":   client.CertFile,
		"keyFile":    client.KeyFile,
		"caFile":     client.CAFile,
		"certData":   client.CertData,
		"keyData":    client.KeyData,
		"caData":     client.CAData,
		"as":         client.Impersonate.UserName,
		"hasProxy":   client.Proxy != nil,
	}
	if exec := client.ExecProvider; exec != nil {
		found["exec"] = map[string]any{"apiVersion": exec.APIVersion, "command": exec.Command, "args": exec.Args}
	}
	return found, nil
}
