// Package enginetest tests every engine.Engine in the same way: test vectors
// (testdata/conformance), a suite of scenarios that each engine must pass, and an exact reference
// model with which the answers to random sequences are compared.
//
// Words: a vector is a rule with a list of steps, each a call at an instant and the answer that it
// must have. A scenario is a test with a name and a reason. The reference counts with exact
// fractions, and remembers every call, so it is slow and simple.
//
// Example: a vector has a fixed window of 10 a minute. The steps at 0 s, with the cost 8 and then
// 3, must be allowed with 2 remaining, and denied with a retry after 60000 ms. The memory engine
// and the engine in Redis both run it. In a random sequence, the step has a random cost and
// instant, and the reference computes the answer.
package enginetest
