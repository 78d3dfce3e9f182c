resource "weir_route" "shop" {
  slug    = "shop"
  subject = ["jwt:sub", "ip"]
  resources = [
    { match = "GET /orders/{id}" },
    { match = "POST /orders", resource = "orders:create", cost = 5 },
  ]
}
