package weirgrpc_test

import (
	"context"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/weir-dev/weir-go/weirgrpc"
	"github.com/weir-dev/weir-go/weirtest"
)

func ExampleGuard() {
	client := weirtest.DenyAll()
	guard := weirgrpc.Guard{Checker: client, Subject: weirgrpc.Metadata("x-customer")}
	server := grpc.NewServer(
		grpc.UnaryInterceptor(guard.Unary),
		grpc.StreamInterceptor(guard.Stream),
	)

	address := serve(server)
	defer server.Stop()
	connection, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		panic(err)
	}
	defer connection.Close()
	ctx := metadata.AppendToOutgoingContext(context.Background(), "x-customer", "user_42")
	_, err = healthpb.NewHealthClient(connection).Check(ctx, &healthpb.HealthCheckRequest{})
	fmt.Println(status.Code(err), client.Asked()[0].Subject, client.Asked()[0].Resource)
	// Output: ResourceExhausted user_42 /grpc.health.v1.Health/Check
}

func ExampleLimit() {
	client := weirtest.DenyAll()
	limit := weirgrpc.Limit{Checker: client} // the subject is the target, the resource the method
	connection, err := grpc.NewClient("partner.example.com:443",
		grpc.WithUnaryInterceptor(limit.Unary),
		grpc.WithStreamInterceptor(limit.Stream),
		grpc.WithTransportCredentials(insecure.NewCredentials()),
	)

	if err != nil {
		panic(err)
	}
	defer connection.Close()
	_, err = healthpb.NewHealthClient(connection).Check(context.Background(), &healthpb.HealthCheckRequest{})
	fmt.Println(status.Code(err), client.Asked()[0].Subject, client.Asked()[0].Resource)
	// Output: ResourceExhausted partner.example.com:443 /grpc.health.v1.Health/Check
}

// serve starts a server with one service, and returns its address.
func serve(server *grpc.Server) string {
	healthpb.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	go func() { _ = server.Serve(listener) }()
	return listener.Addr().String()
}
