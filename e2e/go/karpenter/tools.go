//go:build tools

// Package tools pins the version of a program that is built as it is.
package tools

import _ "sigs.k8s.io/karpenter/kwok"
