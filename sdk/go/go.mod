module github.com/weir-dev/weir-go

go 1.24.0
