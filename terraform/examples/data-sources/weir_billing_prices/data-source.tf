data "weir_billing_prices" "all" {
}
