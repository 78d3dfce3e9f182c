// Package enginetest holds every engine.Engine to one account: test vectors (testdata/conformance),
// a suite of scenarios that each engine must pass, and an exact reference model against which
// random sequences are compared.
package enginetest
