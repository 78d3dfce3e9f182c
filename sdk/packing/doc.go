// Package packing tests that the Go modules of the client can be published: it packs them as the Go
// module proxy does, and compiles a module that requires them.
package packing
