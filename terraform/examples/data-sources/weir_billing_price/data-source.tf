data "weir_billing_price" "pro_monthly" {
  id = "price_pro_monthly"
}
