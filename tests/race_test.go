//go:build race

package tests

// raceDetector: the servers under test are built with it too, where the tests are.
const raceDetector = true
