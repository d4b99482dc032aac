// Package nils knows the values that are nil behind an interface.
package nils

import "reflect"

// Is reports whether v is nil, or an interface around a nil pointer, function, channel or unsafe
// pointer. A nil slice or map is a value: it has no entries.
func Is(v any) bool {
	switch r := reflect.ValueOf(v); r.Kind() {
	case reflect.Invalid:
		return true
	case reflect.Pointer, reflect.Func, reflect.Chan, reflect.UnsafePointer:
		return r.IsNil()
	default:
		return false
	}
}
