// Package enginetest tests every engine.Engine in the same way: test vectors
// (testdata/conformance), a suite of scenarios that each engine must pass, and an exact reference
// model with which the answers to random sequences are compared.
package enginetest
