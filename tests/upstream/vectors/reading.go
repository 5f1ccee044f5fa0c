package vectors

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"

	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/klog/v2"
	kubeletv1beta1 "k8s.io/kubelet/config/v1beta1"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/capabilities"
	"k8s.io/kubernetes/pkg/credentialprovider"
	_ "k8s.io/kubernetes/pkg/credentialprovider/plugin" // decode, see below
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/apis/config"
	kubeletscheme "k8s.io/kubernetes/pkg/kubelet/apis/config/scheme"
	kubeletconversion "k8s.io/kubernetes/pkg/kubelet/apis/config/v1beta1"
	"k8s.io/kubernetes/pkg/kubelet/apis/config/validation"
	_ "k8s.io/kubernetes/pkg/kubelet/config" // tryDecodeSinglePod, see below
	"k8s.io/kubernetes/pkg/kubelet/eviction"
	utilcodec "k8s.io/kubernetes/pkg/kubelet/kubeletconfig/util/codec"
	"sigs.k8s.io/yaml"

	_ "unsafe" // The kubelet's functions that are not exported.
)

//go:linkname tryDecodeSinglePod k8s.io/kubernetes/pkg/kubelet/config.tryDecodeSinglePod
func tryDecodeSinglePod(logger klog.Logger, data []byte, defaultFn func(klog.Logger, *api.Pod) error) (bool, *v1.Pod, error)

//go:linkname applyDefaults k8s.io/kubernetes/pkg/kubelet/config.applyDefaults
func applyDefaults(logger klog.Logger, pod *api.Pod, source string, isFile bool, nodeName types.NodeName) error

//go:linkname decodeProviders k8s.io/kubernetes/pkg/credentialprovider/plugin.decode
func decodeProviders(data []byte) (*kubeletconfig.CredentialProviderConfig, error)

//go:linkname validateProviders k8s.io/kubernetes/pkg/credentialprovider/plugin.validateCredentialProviderConfig
func validateProviders(config *kubeletconfig.CredentialProviderConfig, accounts bool) field.ErrorList

//go:linkname readDockerConfigJSON k8s.io/kubernetes/pkg/credentialprovider.readDockerConfigJSONFileFromBytes
func readDockerConfigJSON(contents []byte) (credentialprovider.DockerConfig, error)

// fileRead is a line: a file of the kubelet and what it is, and in the answer what the kubelet makes of it.
type fileRead struct {
	Kind string `json:"kind"`
	Text []byte `json:"text"`
	// Folder is the one that a kubeconfig is in.
	Folder string `json:"folder,omitempty"`
	Object any    `json:"object,omitempty"`
	Error  string `json:"error,omitempty"`
}

// ReadingMain answers files, one a line, with the object that the kubelet takes from it or why it refuses it.
func ReadingMain() int {
	klog.SetLogger(klog.Logger{})
	// k8s: cmd/kubelet/app/server.go RunKubelet
	capabilities.Setup(true, 0)
	return answerLines("reading-vectors", func(line []byte) (any, error) {
		var file fileRead
		if err := json.Unmarshal(line, &file); err != nil {
			return nil, fmt.Errorf("a line that is no file: %w", err)
		}
		object, err := readFile(file.Kind, file.Folder, file.Text)
		file.Text = nil
		if err != nil {
			file.Error = err.Error()
		} else {
			file.Object = object
		}
		return &file, nil
	})
}

func readFile(kind, folder string, text []byte) (found any, err error) {
	defer func() {
		if panicked := recover(); panicked != nil {
			err = fmt.Errorf("panic: %v", panicked)
		}
	}()
	switch kind {
	case "shape":
		return shapeNamed(string(text))
	case "json":
		read, err := yaml.YAMLToJSON(text)
		return json.RawMessage(read), err
	case "pod":
		const node = "node"
		defaults := func(logger klog.Logger, pod *api.Pod) error {
			return applyDefaults(logger, pod, "/manifest", true, node)
		}
		_, pod, err := tryDecodeSinglePod(klog.Logger{}, text, defaults)
		return pod, err
	case "kubelet":
		return readKubeletConfiguration(text)
	case "kubeconfig":
		return readKubeconfig(folder, text)
	case "docker":
		return readDockerConfigJSON(text)
	case "dockercfg":
		return credentialprovider.ReadDockerConfigFileFromBytes(text)
	case "providers":
		config, err := decodeProviders(text)
		if err == nil {
			err = validateProviders(config, true).ToAggregate()
		}
		return config, err
	}
	return nil, fmt.Errorf("no kind %q of file is known", kind)
}

// readKubeletConfiguration decodes, defaults and validates as the kubelet does at its start.
func readKubeletConfiguration(text []byte) (any, error) {
	if len(text) == 0 {
		return nil, fmt.Errorf("the file was empty")
	}
	_, codecs, err := kubeletscheme.NewSchemeAndCodecs(serializer.EnableStrict)
	if err != nil {
		return nil, err
	}
	config, err := utilcodec.DecodeKubeletConfiguration(context.Background(), codecs, text)
	if err != nil {
		return nil, err
	}
	gates := utilfeature.DefaultMutableFeatureGate.DeepCopy()
	if err := gates.SetFromMap(config.FeatureGates); err != nil {
		return nil, err
	}
	// Whether the host has the cgroups that it wants is not in the file.
	checked := config.DeepCopy()
	checked.FailCgroupV1 = false
	if err := validation.ValidateKubeletConfiguration(checked, gates); err != nil {
		return nil, err
	}
	// k8s: cmd/kubelet/app/server.go loadConfigFile
	if config.EvictionHard == nil || config.MergeDefaultEvictionSettings {
		given := config.EvictionHard
		config.EvictionHard = maps.Clone(eviction.DefaultEvictionHard)
		maps.Copy(config.EvictionHard, given)
	}
	// What it reads first when it starts, and refuses to start without.
	thresholds := []map[string]string{config.EvictionHard, config.EvictionSoft, config.EvictionSoftGracePeriod, config.EvictionMinimumReclaim}
	if _, err := eviction.ParseThresholdConfig(config.EnforceNodeAllocatable, thresholds[0], thresholds[1], thresholds[2], thresholds[3]); err != nil {
		return nil, err
	}
	var external kubeletv1beta1.KubeletConfiguration
	err = kubeletconversion.Convert_config_KubeletConfiguration_To_v1beta1_KubeletConfiguration(config, &external, nil)
	return &external, err
}
