//go:build seed

package seed

import (
	_ "github.com/NVIDIA/go-nvml/pkg/nvml"
	_ "github.com/cockroachdb/datadriven"
	_ "github.com/google/go-cmp/cmp"
	_ "github.com/hashicorp/cli"
	_ "github.com/hashicorp/consul/api"
	_ "github.com/hashicorp/go-hclog"
	_ "github.com/hashicorp/go-msgpack/v2/codec"
	_ "github.com/hashicorp/go-plugin"
	_ "github.com/hashicorp/hcl/v2"
	_ "github.com/hashicorp/hcl/v2/hclsimple"
	_ "github.com/hashicorp/nomad/api"
	_ "github.com/prometheus/client_golang/prometheus"
	_ "github.com/rogpeppe/go-internal/testscript"
	_ "github.com/shoenig/test/must"
	_ "github.com/zclconf/go-cty/cty"
	_ "go.uber.org/goleak"
	_ "google.golang.org/grpc"
	_ "google.golang.org/protobuf/proto"
	_ "modernc.org/sqlite"
	_ "pgregory.net/rapid"
)
