module elastic-tfjob/pause

go 1.24.0
