package origin

import "net/netip"

// Network returns what one customer of a provider usually has: the address of a client, or for IPv6
// its network of 64 bits. A host that is no address is returned as it is.
func Network(host string) string {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	if ip = ip.Unmap().WithZone(""); ip.Is4() {
		return ip.String()
	}
	network, _ := ip.Prefix(64) // of a valid IPv6 address
	return network.String()
}
