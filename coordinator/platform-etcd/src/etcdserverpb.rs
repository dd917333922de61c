//! The part of etcd's API that is used, by etcd's own names.

include!("gen/etcdserverpb.rs");
