package api

import (
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

// wireMessage has the bytes of a message.
type wireMessage struct{ bytes []byte }

// wireCodec passes the bytes of a wireMessage unchanged.
type wireCodec struct{ encoding.CodecV2 }

func (c wireCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.Copy(v.(*wireMessage).bytes, mem.DefaultBufferPool())}, nil
}

func (c wireCodec) Unmarshal(data mem.BufferSlice, v any) error {
	m := v.(*wireMessage)
	for _, part := range data {
		m.bytes = append(m.bytes, part.ReadOnlyData()...)
	}
	return nil
}
