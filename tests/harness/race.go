//go:build race

package harness

// raceDetector: the tested servers are built with the race detector if the tests are.
const raceDetector = true
