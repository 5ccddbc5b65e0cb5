// Command wellknown writes the descriptors of protobuf's well-known types that
// our .proto files import, as protoc's --descriptor_set_in reads them. They
// come from the protobuf module that go.mod pins, so that generating needs
// protoc alone: Debian ships the types' .proto files in another package.
package main

import (
	"fmt"
	"os"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

func main() {
	set := &descriptorpb.FileDescriptorSet{}
	for _, file := range []protoreflect.FileDescriptor{
		durationpb.File_google_protobuf_duration_proto,
		timestamppb.File_google_protobuf_timestamp_proto,
		wrapperspb.File_google_protobuf_wrappers_proto,
	} {
		set.File = append(set.File, protodesc.ToFileDescriptorProto(file))
	}
	data, err := proto.Marshal(set)
	if err == nil {
		_, err = os.Stdout.Write(data)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "wellknown: write descriptor set:", err)
		os.Exit(1)
	}
}
