package check

import (
	"fmt"
	"runtime/debug"
)

// PanicError is a panic in a goroutine that does work for several callers. The callers cannot
// recover it there, so it would end the process. RecoverTo turns it into an error for the callers,
// and PanicAgain panics with that error in the goroutine of each caller.
type PanicError struct {
	Value any
	Stack []byte
}

func (e *PanicError) Error() string { return fmt.Sprintf("panic: %v\n\n%s", e.Value, e.Stack) }

// RecoverTo stores a panic in err as a PanicError. Defer RecoverTo itself: recover works only in
// the deferred function.
func RecoverTo(err *error) {
	if fault := recover(); fault != nil {
		*err = &PanicError{Value: fault, Stack: debug.Stack()}
	}
}

// PanicAgain panics with err if it is a PanicError.
func PanicAgain(err error) {
	if fault, ok := err.(*PanicError); ok { // RecoverTo does not wrap it
		panic(fault)
	}
}
