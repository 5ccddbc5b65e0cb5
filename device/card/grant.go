package card

import "github.com/nomad-muster/muster/internal/nomadplugin/device"

// Grant is what a task gets with a card.
type Grant struct {
	// Lists are variables in which each of a task's cards has its word; the
	// words of all of them are joined by commas.
	Lists map[string]string
	// Env are variables that are the same whichever cards a task has.
	Env    map[string]string
	Nodes  []device.DeviceNode
	Mounts []device.Mount
}

// NVIDIA grants a card or slice by its UUID: to the container runtime, and to
// CUDA in an order that does not depend on which card is the fastest.
func NVIDIA(uuid string) Grant {
	return Grant{
		Lists: map[string]string{"NVIDIA_VISIBLE_DEVICES": uuid, "CUDA_VISIBLE_DEVICES": uuid},
		Env:   map[string]string{"CUDA_DEVICE_ORDER": "PCI_BUS_ID"},
	}
}

// AMD grants a card to ROCm's runtime, which takes the id of the card as
// GPU-<unique id>, or its index.
func AMD(word string) Grant {
	return Grant{Lists: map[string]string{"ROCR_VISIBLE_DEVICES": word}}
}

// Ascend grants an NPU by its number, to the runtime and to the container
// runtime.
func Ascend(number string) Grant {
	return Grant{Lists: map[string]string{"ASCEND_RT_VISIBLE_DEVICES": number, "ASCEND_VISIBLE_DEVICES": number}}
}

// Intel grants a card to Level Zero by its number.
func Intel(number string) Grant {
	return Grant{Lists: map[string]string{"ZE_AFFINITY_MASK": number}, Env: map[string]string{"ZE_ENABLE_PCI_ID_DEVICE_ORDER": "1"}}
}

// RDMA grants a network adapter by its name. NCCL takes the list as the
// adapters to use, and no others.
func RDMA(name string) Grant {
	return Grant{Lists: map[string]string{"RDMA_VISIBLE_DEVICES": name, "NCCL_IB_HCA": name}}
}

// Node is a device file given to a task under its own path, to read and write.
func Node(path string) device.DeviceNode {
	return device.DeviceNode{TaskPath: path, HostPath: path, Permissions: "rw"}
}
