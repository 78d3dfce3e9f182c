resource "weir_tenant" "this" {
  name = "Acme"
}
