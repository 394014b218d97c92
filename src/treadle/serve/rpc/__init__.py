"""Models over gRPC, by the protocol that HTTP has."""
