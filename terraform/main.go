// Command terraform-provider-weir is the Terraform provider of Weir. Terraform starts it.
package main

import (
	"context"
	"flag"
	"log"

	frameworkprovider "github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"

	"weir/terraform/internal/provider"
)

// address is the name of the provider in the registry; go run ./sdk/names changes it.
const address = "registry.terraform.io/weir-dev/weir"

// version is set by the linker.
var version = "dev"

func main() {
	debug := flag.Bool("debug", false, "serve for a debugger, and print how Terraform connects")
	flag.Parse()
	err := providerserver.Serve(context.Background(), func() frameworkprovider.Provider { return provider.New(version) },
		providerserver.ServeOpts{Address: address, Debug: *debug})
	if err != nil {
		log.Fatal(err)
	}
}
