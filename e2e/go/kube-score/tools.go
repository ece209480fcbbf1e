//go:build tools

// Package tools pins the version of a program that is built as it is.
package tools

import _ "github.com/zegl/kube-score/cmd/kube-score"
