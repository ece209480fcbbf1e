//go:build tools

// Package tools pins the versions of programs that are built as they are.
package tools

import (
	_ "github.com/yannh/kubeconform/cmd/kubeconform"
	_ "github.com/zegl/kube-score/cmd/kube-score"
)
