package main

import (
	"math/rand/v2"

	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// chance makes up values from a seed.
type chance struct{ rand *rand.Rand }

func newChance(seed uint64) chance { return chance{rand.New(rand.NewPCG(seed, 0))} }

// oneIn is true once in n times.
func (c chance) oneIn(n int) bool { return c.rand.IntN(n) == 0 }

// upTo is one of 0 to n-1.
func (c chance) upTo(n int) int { return c.rand.IntN(n) }

func pick[T any](c chance, of ...T) T { return of[c.rand.IntN(len(of))] }

// maybe is a value, nil half of the time.
func maybe[T any](c chance, of ...T) *T {
	if c.oneIn(2) {
		return nil
	}
	value := pick(c, of...)
	return &value
}

func (c chance) fsType() string { return pick(c, "", "", "ext4", "xfs") }

func (c chance) partition() int32 { return pick[int32](c, 0, 0, 1, 7, -1) }

func (c chance) disk() string { return pick(c, "vol-1", "pd-standard", "a1b2/c3", "") }

// awsParts is what names of Amazon's disks are put together from.
var awsParts = []string{"/", "/", "vol-1", "vol-02", "us-east-1a", "%2F", "%zz", "%", "?q", "#f", "#%2", "a@",
	"a b@", "[::1]", ":80", ":x", " ", "\t", "ä", "%C3%A4", "%41", "\"", "|", "+", "vol-", "%76ol-1", "..", "%25"}

func (c chance) awsID() string {
	switch c.upTo(6) {
	case 0:
		return pick(c, "vol-1", "", "disk", "aws:/vol-1", "AWS://z/vol-1")
	case 1, 2:
		return "aws://" + pick(c, "", "us-east-1a") + "/vol-" + pick(c, "1", "0abc", "")
	}
	id := "aws://"
	for range c.upTo(5) {
		id += pick(c, awsParts...)
	}
	return id
}

func (c chance) azureDisk() *v1.AzureDiskVolumeSource {
	return &v1.AzureDiskVolumeSource{
		DiskName:    c.disk(),
		DataDiskURI: pick(c, "/subscriptions/s/resourceGroups/r/providers/Microsoft.Compute/disks/d", "d"),
		CachingMode: maybe(c, v1.AzureDataDiskCachingMode(""), v1.AzureDataDiskCachingReadOnly, v1.AzureDataDiskCachingNone),
		FSType:      maybe(c, "", "ext4"),
		ReadOnly:    maybe(c, true, false),
		Kind:        maybe(c, v1.AzureManagedDisk, v1.AzureManagedDisk, "managed", v1.AzureSharedBlobDisk, ""),
	}
}

func (c chance) secretName() string {
	return pick(c, "azure-storage-account-acct-secret", "azure-storage-account--secret", "s",
		"x-azure-storage-account-a-secret-secret-y", "azure-storage-account-azure-storage-account-b-secret", "")
}

// inline is a volume of a pod.
func (c chance) inline() *v1.Volume {
	volume := &v1.Volume{Name: pick(c, "data", "v")}
	readOnly := c.oneIn(2)
	switch c.upTo(8) {
	case 0:
		volume.AWSElasticBlockStore = &v1.AWSElasticBlockStoreVolumeSource{
			VolumeID: c.awsID(), FSType: c.fsType(), Partition: c.partition(), ReadOnly: readOnly}
	case 1:
		volume.AzureDisk = c.azureDisk()
	case 2:
		volume.AzureFile = &v1.AzureFileVolumeSource{SecretName: c.secretName(), ShareName: c.disk(), ReadOnly: readOnly}
	case 3:
		volume.Cinder = &v1.CinderVolumeSource{VolumeID: c.disk(), FSType: c.fsType(), ReadOnly: readOnly,
			SecretRef: maybe(c, v1.LocalObjectReference{Name: "s"})}
	case 4:
		volume.GCEPersistentDisk = &v1.GCEPersistentDiskVolumeSource{
			PDName: c.disk(), FSType: c.fsType(), Partition: c.partition(), ReadOnly: readOnly}
	case 5:
		volume.PortworxVolume = &v1.PortworxVolumeSource{VolumeID: c.disk(), FSType: c.fsType(), ReadOnly: readOnly}
	case 6:
		volume.VsphereVolume = &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] a/" + c.disk(), FSType: c.fsType(),
			StoragePolicyID: pick(c, "", "id")}
	default:
		volume.EmptyDir = &v1.EmptyDirVolumeSource{}
	}
	return volume
}

// volume is a PersistentVolume.
func (c chance) volume() *v1.PersistentVolume {
	volume := &v1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: pick(c, "pv-1", "pv-2")}}
	c.describe(volume)
	spec := &volume.Spec
	readOnly := c.oneIn(2)
	switch c.upTo(8) {
	case 0:
		spec.AWSElasticBlockStore = &v1.AWSElasticBlockStoreVolumeSource{
			VolumeID: c.awsID(), FSType: c.fsType(), Partition: c.partition(), ReadOnly: readOnly}
	case 1:
		spec.AzureDisk = c.azureDisk()
	case 2:
		spec.AzureFile = &v1.AzureFilePersistentVolumeSource{SecretName: c.secretName(), ShareName: c.disk(),
			ReadOnly: readOnly, SecretNamespace: maybe(c, "secrets", "")}
	case 3:
		spec.Cinder = &v1.CinderPersistentVolumeSource{VolumeID: c.disk(), FSType: c.fsType(), ReadOnly: readOnly}
	case 4, 5:
		spec.GCEPersistentDisk = &v1.GCEPersistentDiskVolumeSource{
			PDName: c.disk(), FSType: c.fsType(), Partition: c.partition(), ReadOnly: readOnly}
	case 6:
		spec.PortworxVolume = &v1.PortworxVolumeSource{VolumeID: c.disk(), FSType: c.fsType(), ReadOnly: readOnly}
	default:
		spec.VsphereVolume = &v1.VsphereVirtualDiskVolumeSource{VolumePath: "[ds] " + c.disk(), FSType: c.fsType(),
			StoragePolicyName: pick(c, "", "gold"), StoragePolicyID: pick(c, "", "id")}
	}
	return volume
}

// describe makes up what all plugins have: labels, annotations, nodes, modes.
func (c chance) describe(volume *v1.PersistentVolume) {
	for _, key := range []string{v1.LabelTopologyZone, v1.LabelFailureDomainBetaZone} {
		if c.oneIn(3) {
			metav1.SetMetaDataLabel(&volume.ObjectMeta, key, c.zones())
		}
	}
	for _, key := range []string{v1.LabelTopologyRegion, v1.LabelFailureDomainBetaRegion} {
		if c.oneIn(4) {
			metav1.SetMetaDataLabel(&volume.ObjectMeta, key, pick(c, "e-w", ""))
		}
	}
	for _, key := range []string{"openstorage.io/auth-secret-name", "openstorage.io/auth-secret-namespace",
		"kubernetes.io/azure-file-resource-group", "volume.beta.kubernetes.io/mount-options"} {
		if c.oneIn(2) {
			metav1.SetMetaDataAnnotation(&volume.ObjectMeta, key, pick(c, "one", "two", ""))
		}
	}
	if c.oneIn(2) {
		volume.Spec.ClaimRef = &v1.ObjectReference{Name: "claim", Namespace: pick(c, "default", "")}
	}
	for range c.upTo(4) {
		volume.Spec.AccessModes = append(volume.Spec.AccessModes,
			pick(c, v1.ReadWriteOnce, v1.ReadOnlyMany, v1.ReadWriteMany, v1.ReadWriteOncePod))
	}
	volume.Spec.VolumeMode = maybe(c, v1.PersistentVolumeBlock, v1.PersistentVolumeFilesystem)
	if c.oneIn(3) {
		volume.Spec.MountOptions = []string{"noatime"}
	}
	if c.oneIn(2) {
		volume.Spec.NodeAffinity = c.affinity()
	}
}

func (c chance) zones() string {
	zones := pick(c, "", "e-w-1", "e-w-1", "e-w-2", "e-s-1", "west", " ")
	for c.oneIn(3) {
		zones += "__" + pick(c, "e-w-1", "e-w-2", "e-s-1", "west", "", " e-w-3 ")
	}
	return zones
}

func (c chance) affinity() *v1.VolumeNodeAffinity {
	if c.oneIn(8) {
		return &v1.VolumeNodeAffinity{}
	}
	selector := &v1.NodeSelector{}
	for range c.upTo(3) {
		term := v1.NodeSelectorTerm{}
		for range c.upTo(4) {
			requirement := v1.NodeSelectorRequirement{
				Key: pick(c, v1.LabelTopologyZone, v1.LabelFailureDomainBetaZone, v1.LabelTopologyRegion,
					v1.LabelFailureDomainBetaRegion, "topology.gke.io/zone", "disk"),
				Operator: pick(c, v1.NodeSelectorOpIn, v1.NodeSelectorOpIn, v1.NodeSelectorOpExists),
			}
			if requirement.Operator == v1.NodeSelectorOpIn {
				for range c.upTo(3) {
					requirement.Values = append(requirement.Values, pick(c, "e-w-1", "e-w-2", "e-w"))
				}
			}
			term.MatchExpressions = append(term.MatchExpressions, requirement)
		}
		selector.NodeSelectorTerms = append(selector.NodeSelectorTerms, term)
	}
	return &v1.VolumeNodeAffinity{Required: selector}
}
