module leasehold.dev/agent/sdk/go

go 1.21
