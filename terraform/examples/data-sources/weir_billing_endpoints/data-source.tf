data "weir_billing_endpoints" "all" {
}
