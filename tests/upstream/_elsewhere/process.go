// Package elsewhere runs another program in place of a component that a test of upstream's starts in
// its own process: laid into k8s.io/kubernetes/pkg/elsewhere when the tests are built, never built
// here.
//
// Input: the client configuration of the test's API server and the feature gates of its process.
// Output: a process that ends with the test's context, and with the test program however it ends.
package elsewhere

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"k8s.io/apiserver/pkg/util/feature"
	restclient "k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// minor is the release, 1.36, whose gates the programs know.
const minor = 36

// Run runs the program with these arguments, and variables over those of this process, until the
// context ends.
func Run(ctx context.Context, program string, args []string, variables ...string) error {
	// The program is to end with this process, which the kernel counts by the thread.
	runtime.LockOSThread()
	cmd := exec.Command(program, args...)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	cmd.Env = append(os.Environ(), variables...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		return fmt.Errorf("ended: %v", err)
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		<-ended
		return nil
	}
}

// Get asks the program that serves on this port.
func Get(port int, path string) (*http.Response, error) {
	transport := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	return client.Get(fmt.Sprintf("https://127.0.0.1:%d%s", port, path))
}

// Gates are the arguments that switch what the test has switched in its own process.
func Gates() []string {
	// A test that plays an older release asks for gates which no program of this one has.
	if feature.DefaultMutableFeatureGate.EmulationVersion().Minor() < minor {
		return nil
	}
	var pairs []string
	for name, spec := range feature.DefaultMutableFeatureGate.GetAll() {
		if is := feature.DefaultFeatureGate.Enabled(name); is != spec.Default && !spec.LockToDefault {
			pairs = append(pairs, fmt.Sprintf("%s=%t", name, is))
		}
	}
	if len(pairs) == 0 {
		return nil
	}
	slices.Sort(pairs)
	return []string{"--feature-gates=" + strings.Join(pairs, ",")}
}

// WriteKubeconfig writes what a program needs to reach the API server of a test.
func WriteKubeconfig(rest *restclient.Config, path string) error {
	host := rest.Host
	if !strings.Contains(host, "://") {
		host = "https://" + host
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{
		Server:                   host,
		TLSServerName:            rest.ServerName,
		InsecureSkipTLSVerify:    rest.Insecure,
		CertificateAuthority:     rest.CAFile,
		CertificateAuthorityData: rest.CAData,
	}
	config.AuthInfos["test"] = &clientcmdapi.AuthInfo{
		Token:                 rest.BearerToken,
		ClientCertificate:     rest.CertFile,
		ClientCertificateData: rest.CertData,
		ClientKey:             rest.KeyFile,
		ClientKeyData:         rest.KeyData,
	}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	config.CurrentContext = "test"
	return clientcmd.WriteToFile(*config, path)
}

// FreePort is a port that nothing listens on.
func FreePort() int {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}
