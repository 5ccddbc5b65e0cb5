package wire

import (
	"context"
	"math"
	"path"

	"github.com/hashicorp/go-hclog"
	"google.golang.org/grpc"
)

// ServerOptions are the gRPC options of every server half: panics become
// errors, errors get the codes that Nomad understands, and a message may be as
// large as those that Nomad's side accepts (a task's handle carries its whole
// environment).
func ServerOptions(log hclog.Logger) []grpc.ServerOption {
	unary := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (resp any, err error) {
		err = Safely(path.Base(info.FullMethod), log, func() (err error) {
			resp, err = handle(ctx, req)
			return err
		})
		if err != nil {
			return nil, Status(ctx, err)
		}
		return resp, nil
	}
	stream := func(srv any, ss grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) error {
		err := Safely(path.Base(info.FullMethod), log, func() error { return handle(srv, ss) })
		return Status(ss.Context(), err)
	}
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(unary),
		grpc.ChainStreamInterceptor(stream),
		grpc.MaxRecvMsgSize(math.MaxInt32),
	}
}
