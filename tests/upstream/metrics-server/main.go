// Command metrics-server is upstream's, which asks every node's agent what its pods use.
package main

import (
	"os"

	genericapiserver "k8s.io/apiserver/pkg/server"
	"sigs.k8s.io/metrics-server/cmd/metrics-server/app"
)

func main() {
	if err := app.NewMetricsServerCommand(genericapiserver.SetupSignalHandler()).Execute(); err != nil {
		os.Exit(1)
	}
}
