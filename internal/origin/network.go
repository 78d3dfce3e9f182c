package origin

import "net/netip"

// Network returns what one customer of a provider usually has: the address of a client, or for IPv6
// its network of 64 bits. A host that is no address is returned as it is.
func Network(host string) string {
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return host
	}
	return nameOf(NetworkOf(ip))
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

// Networks are those that an address is in, the narrowest first: its Network, that of a home and
// that of a site. One customer of a provider can have all of a home (IPv6: 56 bits, which are 256
// networks) or of a site (IPv6: 48 bits, which are 65,536 networks; IPv4: 24 bits). So limits by
// network also count the wider ones, with larger numbers. There is no home with IPv4, and no
// network at all without an address; they are the zero value.
type Networks [3]netip.Prefix

// Within returns the networks that an address is in.
func Within(ip netip.Addr) Networks {
	ip = ip.Unmap().WithZone("")
	within := Networks{NetworkOf(ip)}
	switch {
	case ip.Is4():
		within[2], _ = ip.Prefix(24)
	case ip.Is6():
		within[1], _ = ip.Prefix(56)
		within[2], _ = ip.Prefix(48)
	}
	return within
}

// Client returns the widest network that is surely one client's: an address with IPv4, and a site
// with IPv6.
func (n Networks) Client() netip.Prefix {
	if n[0].Addr().Is4() {
		return n[0]
	}
	return n[2]
}

// WithinHost is Within for a host, which may be no address.
func WithinHost(host string) Networks {
	ip, _ := netip.ParseAddr(host) // the zero value is no address
	return Within(ip)
}

// Site returns the name of the widest network that a host is in.
func Site(host string) string {
	within := WithinHost(host)
	if !within[2].IsValid() {
		return host
	}
	return nameOf(within[2])
}

// Names returns the names of the networks; "" for a wider one that does not exist. All clients
// without an address have one name.
func (n Networks) Names() (names [3]string) {
	names[0] = "none"
	for i, network := range n {
		if network.IsValid() {
			names[i] = nameOf(network)
		}
	}
	return names
}

// nameOf returns the name of a network, which is the address itself for a single one.
func nameOf(network netip.Prefix) string {
	if network.IsSingleIP() {
		return network.Addr().String()
	}
	return network.String()
}
