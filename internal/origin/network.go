package origin

import "net/netip"

// Network returns what one customer of a provider usually has: the address of a client, or for IPv6
// its network of 64 bits. A host that is no address is returned as it is.
func Network(host string) string {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	network := NetworkOf(ip)
	if network.Addr().Is4() {
		return network.Addr().String()
	}
	return network.String()
}

// NetworkOf is Network for an address.
func NetworkOf(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap().WithZone("")
	bits := 64
	if ip.Is4() {
		bits = 32
	}
	network, _ := ip.Prefix(bits) // without an address, there is no network
	return network
}
