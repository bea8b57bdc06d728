"""Generated from ``node.proto`` by grpc_tools.protoc; never edited by hand."""
