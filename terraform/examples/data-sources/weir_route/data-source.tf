data "weir_route" "shop" {
  slug = "shop"
}
