//go:build tools

// Package tools pins the version of a program that is built as it is.
package tools

import _ "helm.sh/helm/v3/cmd/helm"
