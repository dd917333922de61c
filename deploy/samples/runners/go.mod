module leasehold.dev/samples/runners

go 1.21

require leasehold.dev/agent/sdk/go v0.1.0

replace leasehold.dev/agent/sdk/go => ../../../agent/sdk/go
