//go:build race

package harness

// raceDetector: the servers under test are built with it too, where the tests are.
const raceDetector = true
