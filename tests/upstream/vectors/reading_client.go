package vectors

import (
	"fmt"
	"os"
	"slices"
	"strings"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// kubeconfigFile is where a kubeconfig is put in the folder that its relative paths begin at.
const kubeconfigFile = "kubeconfig-upstream"

// readKubeconfig is what a client made of a kubeconfig in this folder knows of the server and of itself.
// k8s: cmd/kubelet/app/server.go buildKubeletClientConfig
func readKubeconfig(folder string, text []byte) (any, error) {
	path := folder + "/" + kubeconfigFile
	if err := os.WriteFile(path, text, 0o600); err != nil {
		panic(err)
	}
	rules := &clientcmd.ClientConfigLoadingRules{ExplicitPath: path}
	client, err := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{}).ClientConfig()
	if err != nil {
		return nil, err
	}
	server, _, err := rest.DefaultServerUrlFor(client)
	if err != nil {
		return nil, err
	}
	// What the first request would use, and fail without.
	if _, err := rest.HTTPClientFor(client); err != nil {
		return nil, err
	}
	if client.Host == "" {
		return nil, fmt.Errorf("no host")
	}
	found := map[string]any{
		"server":     strings.TrimRight(server.String(), "/"),
		"insecure":   client.Insecure,
		"serverName": client.ServerName,
		"ca":         source(client.CAFile, client.CAData),
	}
	isPlain := true
	if hasCertificate := len(client.CertData)+len(client.CertFile) > 0; hasCertificate {
		found["cert"], found["key"] = source(client.CertFile, client.CertData), source(client.KeyFile, client.KeyData)
		isPlain = false
	}
	if client.BearerToken != "" || client.BearerTokenFile != "" {
		found["tokenFile"] = client.BearerTokenFile
		if read, err := os.ReadFile(client.BearerTokenFile); err != nil || string(read) != client.BearerToken {
			found["token"] = client.BearerToken
		}
		isPlain = false
	}
	if client.Username != "" {
		found["basic"] = client.Username + ":" + client.Password
		isPlain = false
	}
	if exec := client.ExecProvider; exec != nil && isPlain {
		env := []string{}
		for _, variable := range exec.Env {
			env = append(env, variable.Name+"="+variable.Value)
		}
		found["exec"] = map[string]any{"apiVersion": exec.APIVersion, "command": exec.Command, "args": exec.Args, "env": env}
	}
	as := client.Impersonate
	extra := []string{}
	for _, values := range as.Extra {
		extra = append(extra, values...)
	}
	slices.Sort(extra)
	found["as"] = map[string]any{"user": as.UserName, "uid": as.UID, "groups": as.Groups, "extra": extra}
	return found, nil
}

// source is where bytes come from; data wins over a file.
func source(file string, data []byte) any {
	if len(data) > 0 {
		return map[string]any{"data": data}
	}
	return file
}
