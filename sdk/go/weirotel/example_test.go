package weirotel_test

import (
	"fmt"
	"os"

	weir "github.com/weir-dev/weir-go"
	"github.com/weir-dev/weir-go/weirotel"
)

func newClient() (*weir.Client, error) {
	hooks, err := weirotel.Hooks()
	if err != nil {
		return nil, err
	}
	return weir.New(os.Getenv("WEIR_URL"), os.Getenv("WEIR_KEY"), weir.WithHooks(hooks))
}

func ExampleHooks() {
	client, err := newClient()
	if err != nil { // without WEIR_URL and WEIR_KEY
		fmt.Println(err)
		return
	}
	defer client.Close()
}
