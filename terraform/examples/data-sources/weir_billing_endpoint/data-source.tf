data "weir_billing_endpoint" "stripe" {
  id = data.weir_billing_endpoints.all.items[0].id
}
