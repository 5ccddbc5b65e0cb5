package driver

import (
	"cmp"
	"reflect"
	"slices"

	"github.com/nomad-muster/muster/internal/contract"
	"github.com/nomad-muster/muster/internal/nomadplugin/hclspec"
)

// taskMessage is a task's config block as Nomad encodes it. Its fields are
// checked by contract.ParseTaskConfig, which the planner and the CLI use too.
type taskMessage struct {
	Args             any `codec:"args"`
	AskSignal        any `codec:"ask_signal"`
	Checkpoint       any `codec:"checkpoint"`
	Command          any `codec:"command"`
	Elastic          any `codec:"elastic"`
	HangTimeout      any `codec:"hang_timeout"`
	Image            any `codec:"image"`
	ImagePullTimeout any `codec:"image_pull_timeout"`
	Interface        any `codec:"interface"`
	Isolation        any `codec:"isolation"`
	Launcher         any `codec:"launcher"`
	LogFiles         any `codec:"log_files"`
	LogPrefix        any `codec:"log_prefix"`
	MaxRestarts      any `codec:"max_restarts"`
	Module           any `codec:"module"`
	NprocPerNode     any `codec:"nproc_per_node"`
	PassEnv          any `codec:"pass_env"`
	PreflightCommand any `codec:"preflight_command"`
	PreflightTimeout any `codec:"preflight_timeout"`
	Python           any `codec:"python"`
	Script           any `codec:"script"`
	SlurmEnv         any `codec:"slurm_env"`
	World            any `codec:"world"`
}

// TaskConfigSchema describes a task's config block.
func (p *Plugin) TaskConfigSchema() *hclspec.Spec {
	names, types, _ := contract.TaskFields()
	object := map[string]*hclspec.Spec{}
	for _, name := range names {
		object[name] = &hclspec.Spec{Attr: &hclspec.Attr{Name: name, Type: types[name]}}
	}
	return &hclspec.Spec{Object: object}
}

// decodeTask gives the config block as a map without the fields that the user
// left out.
func decodeTask(msgpack []byte) (map[string]any, error) {
	var m taskMessage
	if err := hclspec.Decode(msgpack, &m); err != nil {
		return nil, err
	}
	raw := map[string]any{}
	v := reflect.ValueOf(m)
	for i := range v.NumField() {
		if value := v.Field(i).Interface(); value != nil {
			raw[v.Type().Field(i).Tag.Get("codec")] = value
		}
	}
	return raw, nil
}

func sorted(f contract.Faults) contract.Faults {
	slices.SortStableFunc(f, func(a, b contract.Fault) int { return cmp.Compare(a.Field, b.Field) })
	return f
}
