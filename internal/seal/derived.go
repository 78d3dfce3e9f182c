package seal

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
)

// Derive returns a key for one purpose from the secret of the deployment.
func Derive(purpose string, secret [16]byte) [sha256.Size]byte {
	return sha256.Sum256(append([]byte(purpose), secret[:]...))
}

// AEAD returns AES-GCM with a random nonce before each ciphertext, for records and messages in
// Redis that live for minutes at most. Their key follows from the secret of the deployment, so
// every instance reads what another one wrote, and nothing must be rotated.
func AEAD(key [sha256.Size]byte) cipher.AEAD {
	block, err := aes.NewCipher(key[:])
	if err != nil { // the length of the key is valid
		panic("seal: " + err.Error())
	}
	aead, err := cipher.NewGCMWithRandomNonce(block)
	if err != nil { // the block size is valid
		panic("seal: " + err.Error())
	}
	return aead
}
