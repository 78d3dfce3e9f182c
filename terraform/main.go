// Command terraform-provider-weir is the Terraform provider of Weir. Terraform starts it.
package main

import (
	"context"
	"flag"
	"log"

	frameworkprovider "github.com/hashicorp/terraform-plugin-framework/provider"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	tfaddr "github.com/hashicorp/terraform-registry-address"

	"weir/terraform/internal/provider"
)

// name is the name of the provider in Terraform's registry; go run ./sdk/names changes it.
const name = "weir-dev/weir"

// version is set by the linker.
var version = "dev"

func main() {
	debug := flag.Bool("debug", false, "serve for a debugger, and print how Terraform connects")
	flag.Parse()
	err := providerserver.Serve(context.Background(), func() frameworkprovider.Provider { return provider.New(version) },
		providerserver.ServeOpts{Address: tfaddr.DefaultProviderRegistryHost.String() + "/" + name, Debug: *debug})
	if err != nil {
		log.Fatal(err)
	}
}
