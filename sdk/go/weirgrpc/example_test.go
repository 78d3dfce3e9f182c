package weirgrpc_test

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	weir "github.com/weir-dev/weir-go"
	"github.com/weir-dev/weir-go/weirgrpc"
)

func ExampleGuard() {
	var client *weir.Client
	guard := weirgrpc.Guard{Checker: client, Subject: weirgrpc.Metadata("x-customer")}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(guard.Unary),
		grpc.StreamInterceptor(guard.Stream),
	)
	_ = server
}

func ExampleLimit() {
	var client *weir.Client
	limit := weirgrpc.Limit{Checker: client} // the subject is the target, the resource the method
	connection, err := grpc.NewClient("partner.example.com:443",
		grpc.WithUnaryInterceptor(limit.Unary),
		grpc.WithStreamInterceptor(limit.Stream),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	)
	_, _ = connection, err
}
