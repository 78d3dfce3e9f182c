// Command first is the first check of the README.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	weir "github.com/weir-dev/weir-go"
)

func main() {
	client, err := weir.New(os.Getenv("WEIR_URL"), os.Getenv("WEIR_KEY"))
	if err != nil {
		log.Fatal(err)
	}
	decision, err := client.Check(context.Background(), weir.Check{Subject: "user_42", Resource: "orders:create"})
	if err != nil {
		log.Fatal(err) // the call is wrong: the error names the field and the fix
	}
	fmt.Println("allowed:", decision.Allowed)
}
