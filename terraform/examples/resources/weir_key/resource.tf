resource "weir_key" "checkout" {
  name   = "checkout"
  scopes = ["check"]
}
