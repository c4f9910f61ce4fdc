//! The words of the shop. A value pattern offers choices as `<a|b|c>`, `#` inside a choice is a digit. A layout is a row
//! of pieces parted by `~`; a piece `, {Key}` is left out where the product has no such attribute, `?words` is left out
//! half of the time. Brands are put together from syllables; any likeness to a real one is chance.

pub struct Category {
    pub name: &'static str,
    /// Typical price.
    pub price: f64,
    /// Attribute, how often a product states it, patterns of its values. Attributes are listed in this order.
    pub schema: &'static [(&'static str, f64, &'static [&'static str])],
    pub layouts: &'static [&'static str],
}

pub const BRAND_STARTS: &[&str] = &[
    "Velm", "Tarn", "Osk", "Brind", "Quill", "Zand", "Hulv", "Yorr", "Fenn", "Drov", "Istr", "Wexl", "Pell", "Nevr",
    "Calt", "Murd", "Skarn", "Thimb", "Grell", "Lunth", "Vask", "Ombr", "Jorv", "Kestl", "Ulm", "Brask", "Fjel",
    "Mirv", "Olst", "Dawl", "Sorr", "Tezz", "Nimb", "Wull", "Rask", "Elb", "Pomf", "Gild", "Harl", "Cindr",
];
pub const BRAND_ENDS: &[&str] = &[
    "ora", "wick", "elle", "low", "ano", "ika", "stad", "une", "eo", "ith", "ovane", "mere", "ax", "ington", "u",
    "ette", "ado", "orn", "is", "umi", "etta", "fjord",
];
pub const BRAND_PATTERNS: &[&str] = &[
    "%1",
    "%1",
    "%1",
    "%1",
    "%1",
    "%1 & %2",
    "%1 Labs",
    "House of %1",
    "%1 Co.",
    "%1's",
    "The %1 Company",
    "%1 %2",
    "%1-%2",
    "Dr. %1",
    "%1 Bros.",
    "Little %1",
];

pub const FILLERS: &[&str] = &[
    "Great Gift",
    "<New|NEW> 20<24|25|26>",
    "Best Seller",
    "Free Returns",
    "Gift Boxed",
    "Value Buy",
    "Online Only",
    "Clearance",
    "Limited Edition",
    "<2|3> Year Warranty",
    "Packaging May Vary",
    "Imported",
    "#1 Choice",
];

const COLORS: &[&str] = &[
    "<Black|Black|White|Navy|Grey|Red|Green|Teal|Silver|Beige|Pink|Purple|Yellow|Olive>",
    "<Matte|Dark|Light|Deep|Pastel|Dusty> <Blue|Green|Grey|Red|Pink|Brown>",
    "<Black|White|Navy|Grey>/<Red|Gold|White|Lime|Orange>",
    "<Charcoal|Ivory|Sand|Rose Gold|Midnight Blue|Forest Green|Sky Blue|Rust|Mint|Plum|Coral|Multicolor>",
];
const PACKS: &[&str] = &[
    "Pack of <2|3|4|6|12>",
    "<2|3|4|6|10>-Pack",
    "<2|4|6|8> pk",
    "<Twin|Single|Triple> Pack",
    "Set of <2|3|4|6>",
    "<2|3|5> Count",
];
const WEIGHTS: &[&str] = &[
    "<8|10|12|14.4|16|20|32> <oz|Oz|OZ|Ounce|ounces|oz.>",
    "<100|200|250|340|500|750>g",
    "<1|1.5|2|2.2|5> <lb|lbs|Pound|kg>",
    "<250|500> <g|gr|grams>",
    "<12|16> oz (<340|453> g)",
];
const FLUIDS: &[&str] = &[
    "<8|8.5|10.1|12|16.9|33.8> <fl oz|Fl. Oz.|FL OZ|oz>",
    "<200|250|300|400|500|750|1000> <ml|mL|ML>",
    "<250|500>ml",
    "<1|1.5> <L|Liter|litre>",
];

pub const CATEGORIES: &[Category] = &[
    Category {
        name: "Coffee",
        price: 14.0,
        schema: &[
            ("Brand", 0.96, &[]),
            ("Roast", 0.6, &["<Dark|Medium|Light|Medium-Dark|Extra Dark> Roast", "<French|Italian|Vienna|City> Roast"]),
            (
                "Flavor",
                0.5,
                &[
                    "<Hazelnut|Vanilla|Caramel|Mocha|Cinnamon|Pumpkin Spice|Toffee>",
                    "<Dark Chocolate|Salted Caramel|Maple> <Bourbon|Pecan|Cream>",
                    "Breakfast Blend",
                    "House Blend",
                    "Decaf",
                ],
            ),
            (
                "Origin",
                0.35,
                &["<Colombia|Ethiopia|Kenya|Sumatra|Peru|Guatemala|Brazil>", "<Colombian|Ethiopian> Supremo"],
            ),
            (
                "Item form",
                0.8,
                &[
                    "<Ground|Whole Bean|Instant> Coffee",
                    "Whole Beans",
                    "Coffee Pods",
                    "Coffee Capsules",
                    "Espresso Powder",
                ],
            ),
            ("Net content", 0.8, WEIGHTS),
            ("Pack size", 0.4, PACKS),
        ],
        layouts: &[
            "{Brand}~ {Flavor}~ {Roast}~ {Origin}~ {Item form}~, {Net content}~ ({Pack size})",
            "{Brand}~ {Item form}~, {Roast}~, {Flavor}~, {Origin}~, {Net content}~, {Pack size}",
            "{Brand}~ {Origin}~ {Item form}~, {Roast}~ - {Flavor}~ {Net content}~ {Pack size}",
            "{Net content}~ {Brand}~ {Flavor}~ {Item form}~ ({Roast})~, {Pack size}",
        ],
    },
    Category {
        name: "Tea",
        price: 9.0,
        schema: &[
            ("Brand", 0.96, &[]),
            (
                "Variety",
                0.85,
                &["<Green|Black|White|Herbal|Oolong|Rooibos> Tea", "<Earl Grey|English Breakfast|Chai|Matcha|Assam>"],
            ),
            (
                "Flavor",
                0.55,
                &[
                    "<Peach|Lemon|Ginger|Mint|Jasmine|Mango|Honey>",
                    "<Lemon|Apple|Orange> & <Ginger|Honey|Mint|Cinnamon>",
                    "Wild <Berry|Cherry>",
                ],
            ),
            (
                "Specialty",
                0.4,
                &["<Organic|Caffeine Free|Decaffeinated|Fair Trade|Sugar Free>", "<Sleep|Detox|Digestive> Support"],
            ),
            ("Item form", 0.7, &["Tea Bags", "Loose Leaf", "Sachets", "<Pyramid|Round> Bags", "Powder"]),
            ("Net content", 0.75, &["<16|18|20|25|40|50|80|100> <Count|Ct|ct.|bags>", "<50|75|100|125|250> g"]),
            ("Pack size", 0.35, PACKS),
        ],
        layouts: &[
            "{Brand}~ {Specialty}~ {Flavor}~ {Variety}~, {Item form}~, {Net content}~ ({Pack size})",
            "{Brand}~ {Variety}~ {Flavor}~ {Item form}~ {Net content}~ {Specialty}~, {Pack size}",
            "{Brand}~ {Variety}~, {Flavor}~, {Specialty}~, {Net content}~ {Item form}~ ({Pack size})",
        ],
    },
    Category {
        name: "Shoes",
        price: 70.0,
        schema: &[
            ("Brand", 0.97, &[]),
            ("Gender", 0.65, &["<Men's|Women's|Kids'|Unisex|Boys'|Girls'>"]),
            (
                "Model",
                0.7,
                &[
                    "<Strider|Ridgeway|Pacer|Dune|Glide|Harbor|Summit|Tempo|Alder> <2|3|5|X|Pro|II|WP|Low|Mid>",
                    "<Strider|Dune|Harbor|Loft|Alder>",
                    "<RX|TR|GL>-<###|##>",
                ],
            ),
            (
                "Type",
                0.85,
                &[
                    "<Running|Trail|Walking|Tennis|Work|Hiking> Shoes",
                    "<Chelsea|Ankle|Rain> Boots",
                    "<Slip-On|Low Top|High Top> Sneakers",
                    "Sandals",
                    "Loafers",
                    "Slippers",
                ],
            ),
            ("Material", 0.3, &["<Leather|Suede|Canvas|Mesh|Knit|Wool|Faux Leather>"]),
            ("Color", 0.75, COLORS),
            (
                "Size",
                0.75,
                &[
                    "<36|38|39|40|41|42|43|44|45> EU",
                    "EU <37|39|41|42.5|44>",
                    "US <7|8|8.5|9|10|10.5|11|12>",
                    "<7|8|9|10|11>.5 <M US|D(M) US|W>",
                    "UK <5|6|7|8|9|10>",
                    "Size <6|7|8|9|10|11>",
                ],
            ),
        ],
        layouts: &[
            "{Brand}~ {Gender}~ {Model}~ {Material}~ {Type}~, {Color}~, {Size}",
            "{Brand}~ {Model}~ {Gender}~ {Type}~ {Color}~ {Size}",
            "{Gender}~ {Brand}~ {Type}~ {Model}~ - {Color}~ ({Size})",
            "{Brand}~ {Model}~ {Color}~ {Material}~ {Type}~ {Gender}~, {Size}",
        ],
    },
    Category {
        name: "Headphones",
        price: 60.0,
        schema: &[
            ("Brand", 0.97, &[]),
            ("Model", 0.7, &["<HX|WN|AL|SP|Q>-<####|###|##N>", "<Pulse|Nova|Drift|Arc> <2|3|Pro|Max|Lite|Mini>"]),
            (
                "Form",
                0.85,
                &[
                    "<Over-Ear|On-Ear|In-Ear> Headphones",
                    "<True Wireless|Wireless|Sport> Earbuds",
                    "Earphones",
                    "<Gaming|Office> Headset",
                ],
            ),
            (
                "Connection",
                0.65,
                &["Bluetooth <5.0|5.1|5.2|5.3|5.4>", "<Wired|Wireless|Bluetooth>", "USB-C", "3.5mm <Jack|Plug>"],
            ),
            (
                "Feature",
                0.6,
                &[
                    "<Active|Hybrid> Noise Cancelling",
                    "<ANC|Deep Bass|Foldable|IPX5|IPX7 Waterproof>",
                    "with <Mic|Microphone|Charging Case|Ear Hooks>",
                ],
            ),
            ("Battery life", 0.45, &["<20|24|30|36|40|48|60> <Hours|hrs|H> <Playtime|Battery>", "<24|30|40|50>h"]),
            ("Color", 0.6, COLORS),
        ],
        layouts: &[
            "{Brand}~ {Model}~ {Connection}~ {Form}~ {Feature}~, {Battery life}~, {Color}",
            "{Brand}~ {Form}~, {Connection}~, {Feature}~, {Battery life}~ ({Color})",
            "{Brand}~ {Model}~ {Form}~ - {Color}~, {Feature}~, {Connection}~, {Battery life}",
            "{Form}~ {Connection}~ {Feature}~ by {Brand}~ {Model}~ {Color}~ {Battery life}",
        ],
    },
    Category {
        name: "Toothbrush",
        price: 12.0,
        schema: &[
            ("Brand", 0.96, &[]),
            (
                "Type",
                0.8,
                &["<Electric|Sonic|Manual|Bamboo|Travel|Rechargeable Electric> Toothbrush", "Toothbrush <Heads|Set>"],
            ),
            ("Firmness", 0.65, &["<Soft|Medium|Extra Soft|Firm|Ultra Soft>", "<Soft|Medium|Firm> Bristles"]),
            ("Age range", 0.4, &["<Kids|Adult|Toddler|Baby>", "<2|3|5|6>+ Years", "Ages <2-4|3-6|5-9>"]),
            (
                "Feature",
                0.45,
                &[
                    "<BPA Free|Charcoal|Whitening|Biodegradable|2 Minute Timer>",
                    "with <Travel Case|Tongue Cleaner|Cover>",
                ],
            ),
            ("Color", 0.45, COLORS),
            ("Pack size", 0.55, PACKS),
        ],
        layouts: &[
            "{Brand}~ {Age range}~ {Type}~, {Firmness}~, {Feature}~, {Color}~, {Pack size}",
            "{Brand}~ {Feature}~ {Type}~ {Firmness}~ {Color}~ ({Pack size})",
            "{Brand}~ {Type}~ {Age range}~ - {Firmness}~, {Pack size}~, {Color}~ {Feature}",
        ],
    },
    Category {
        name: "Lamp",
        price: 38.0,
        schema: &[
            ("Brand", 0.95, &[]),
            (
                "Type",
                0.9,
                &["<Desk|Floor|Table|Bedside|Clip-On|Pendant|Wall> <Lamp|Light>", "<Reading|Night> Light", "LED Strip"],
            ),
            ("Style", 0.45, &["<Industrial|Mid-Century|Scandinavian|Modern|Rustic|Art Deco|Farmhouse>"]),
            ("Material", 0.4, &["<Brass|Rattan|Ceramic|Glass|Wood|Marble|Linen|Metal>", "Brushed <Nickel|Steel>"]),
            ("Wattage", 0.5, &["<5|7|9|12|18|40|60>W", "<6|10|15> <Watt|watts>", "<E27|E26|E14|GU10> <40|60>W"]),
            (
                "Feature",
                0.4,
                &["<Dimmable|Touch Control|USB Port|Warm White|Remote Control|Adjustable Arm>", "<2700|3000|4000>K"],
            ),
            ("Color", 0.6, COLORS),
            ("Height", 0.4, &["<25|30|42|55|150|165> cm", "<12|15|18.5|24|60> <in|inch|Inches>", "<14|22|58>\""]),
        ],
        layouts: &[
            "{Brand}~ {Style}~ {Type}~, {Material}~, {Color}~, {Wattage}~, {Feature}~, {Height}",
            "{Brand}~ {Type}~ {Color}~ {Material}~ {Height}~ ({Wattage})~, {Feature}",
            "{Style}~ {Type}~ {Brand}~ - {Feature}~ {Wattage}~ {Color}~, {Height}",
        ],
    },
    Category {
        name: "Phone Case",
        price: 18.0,
        schema: &[
            ("Brand", 0.93, &[]),
            (
                "Compatible with",
                0.85,
                &[
                    "for <Orbo|Lyra|Vento|Nimo> <9|10|11|12|14> <Pro|Max|Plus|Lite|Ultra>",
                    "for <Orbo|Lyra|Vento> <9|11|12|X#>",
                    "fits <Nimo|Vento> <A##|S2#>",
                ],
            ),
            ("Type", 0.8, &["<Case|Cover|Flip Case|Wallet Case|Bumper>", "<Slim|Rugged|Clear> Case"]),
            ("Material", 0.55, &["<Silicone|TPU|Leather|Carbon Fiber|Vegan Leather|Cork|Polycarbonate>"]),
            (
                "Feature",
                0.55,
                &[
                    "<Shockproof|Magnetic|Anti-Scratch|Wireless Charging|Kickstand>",
                    "<6|8|10|12> <ft|Feet> Drop Protection",
                    "with <Card Holder|Ring|Strap|Screen Protector>",
                ],
            ),
            ("Color", 0.7, COLORS),
        ],
        layouts: &[
            "{Brand}~ {Type}~ {Compatible with}~, {Material}~, {Feature}~, {Color}",
            "{Brand}~ {Material}~ {Type}~ {Compatible with}~ - {Color}~ ({Feature})",
            "{Type}~ {Compatible with}~, {Brand}~ {Feature}~ {Material}~, {Color}",
        ],
    },
    Category {
        name: "Notebook",
        price: 11.0,
        schema: &[
            ("Brand", 0.95, &[]),
            (
                "Type",
                0.85,
                &["<Notebook|Journal|Sketchbook|Planner|Composition Book>", "<Spiral|Hardcover|Softcover> Notebook"],
            ),
            ("Size", 0.7, &["<A4|A5|A6|B5>", "<5 x 8|8.5 x 11|6 x 9> <in|inch|Inches>", "<Pocket|Large>"]),
            (
                "Ruling",
                0.65,
                &["<Lined|Dotted|Plain|Blank|Graph|Squared|College Ruled|Wide Ruled>", "<5|7>mm <Grid|Dot Grid>"],
            ),
            ("Sheets", 0.6, &["<80|96|100|120|160|192|240> <Pages|pages|pgs>", "<40|70|100> Sheets"]),
            ("Paper weight", 0.3, &["<70|80|90|100|120|160> <gsm|GSM|g/m2>"]),
            ("Color", 0.6, COLORS),
            ("Pack size", 0.35, PACKS),
        ],
        layouts: &[
            "{Brand}~ {Type}~ {Size}~, {Ruling}~, {Sheets}~, {Paper weight}~, {Color}~ ({Pack size})",
            "{Brand}~ {Size}~ {Ruling}~ {Type}~ - {Color}~, {Sheets}~ {Paper weight}~, {Pack size}",
            "{Brand}~ {Color}~ {Type}~, {Sheets}~ {Ruling}~ {Size}~ {Pack size}~ {Paper weight}",
        ],
    },
    Category {
        name: "Vitamin",
        price: 20.0,
        schema: &[
            ("Brand", 0.97, &[]),
            (
                "Supplement",
                0.95,
                &[
                    "Vitamin <C|D3|B12|E|K2|B6>",
                    "<Magnesium|Zinc|Iron|Calcium|Biotin|Omega-3|Turmeric|Collagen|Ashwagandha>",
                    "<Multivitamin|Probiotic|Prenatal Multi>",
                ],
            ),
            (
                "Strength",
                0.65,
                &[
                    "<100|250|400|500|1000|1200> <mg|MG|Mg>",
                    "<1000|2000|5000|10,000> IU",
                    "<50|100|500|1000> mcg",
                    "<10|25|50> Billion CFU",
                ],
            ),
            (
                "Item form",
                0.75,
                &["<Capsules|Tablets|Softgels|Gummies|Drops|Powder|Chewables>", "Veggie Caps", "Fast Dissolve Tablets"],
            ),
            ("Flavor", 0.25, &["<Orange|Cherry|Berry|Lemon|Strawberry|Unflavored>", "Natural <Orange|Mango> Flavor"]),
            (
                "Specialty",
                0.4,
                &["<Vegan|Gluten Free|Non-GMO|Sugar Free|High Potency|Kosher>", "for <Men|Women|Kids|Adults 50+>"],
            ),
            (
                "Net content",
                0.8,
                &[
                    "<30|60|90|100|120|180|240|365> <Count|Ct|ct|count>",
                    "<60|90|120|200>",
                    "<30|60|90> <Servings|Day Supply>",
                ],
            ),
        ],
        layouts: &[
            "{Brand}~ {Supplement}~ {Strength}~, {Specialty}~, {Flavor}~, {Net content}~ {Item form}",
            "{Brand}~ {Supplement}~ {Item form}~ {Specialty}~ - {Strength}~, {Flavor}~ ({Net content})",
            "{Supplement}~ {Strength}~ by {Brand}~, {Net content}~ {Item form}~, {Flavor}~, {Specialty}",
        ],
    },
    Category {
        name: "Bedding",
        price: 55.0,
        schema: &[
            ("Brand", 0.94, &[]),
            (
                "Type",
                0.93,
                &[
                    "<Duvet Cover|Fitted Sheet|Sheet|Comforter|Bedspread|Quilt> Set",
                    "<Pillowcases|Duvet Insert|Mattress Protector|Throw Blanket|Fitted Sheet>",
                ],
            ),
            (
                "Material",
                0.65,
                &[
                    "<100% |>Cotton",
                    "<Linen|Microfiber|Bamboo|Silk|Flannel|Jersey>",
                    "<Egyptian|Organic|Washed> Cotton",
                    "Cotton & Linen",
                ],
            ),
            ("Thread count", 0.35, &["<200|300|400|600|800> <Thread Count|TC>"]),
            (
                "Size",
                0.8,
                &[
                    "<Queen|King|Twin|Twin XL|Full|Double|Single|California King> Size",
                    "<Queen|King|Twin|Full|Single>",
                    "<140|160|200> x <200|220> cm",
                ],
            ),
            ("Pattern", 0.4, &["<Floral|Striped|Checked|Solid|Geometric|Paisley|Polka Dot|Leaf Print>"]),
            ("Color", 0.7, COLORS),
            ("Pieces", 0.4, &["<2|3|4|6|7> <Piece|Pieces|pcs|PC>"]),
        ],
        layouts: &[
            "{Brand}~ {Material}~ {Type}~, {Thread count}~, {Size}~, {Color}~ {Pattern}~, {Pieces}",
            "{Brand}~ {Pieces}~ {Type}~ {Size}~ {Pattern}~ {Color}~ {Material}~ ({Thread count})",
            "{Type}~ {Size}~ - {Brand}~ {Material}~ {Thread count}~, {Pattern}~ {Color}~ - {Pieces}",
        ],
    },
    Category {
        name: "Water Bottle",
        price: 22.0,
        schema: &[
            ("Brand", 0.95, &[]),
            ("Model", 0.4, &["<Trek|Hydra|Cove|Flow|Peak> <2.0|XL|Kids|Sport|Slim>", "<Trek|Hydra|Cove>"]),
            ("Type", 0.85, &["<Water|Insulated|Sports|Drinking> Bottle", "<Vacuum Flask|Tumbler|Travel Mug|Canteen>"]),
            (
                "Material",
                0.65,
                &["<Stainless Steel|Acrylic|Glass|Aluminum|Titanium>", "18/8 Stainless Steel", "BPA-Free Plastic"],
            ),
            ("Capacity", 0.85, FLUIDS),
            ("Lid", 0.35, &["<Straw|Flip|Screw|Spout|Chug> Lid", "with <Straw|Handle|Infuser>"]),
            ("Color", 0.7, COLORS),
        ],
        layouts: &[
            "{Brand}~ {Model}~ {Material}~ {Type}~ {Lid}~, {Capacity}~, {Color}",
            "{Brand}~ {Type}~ {Capacity}~ {Color}~, {Material}~, {Lid}~ ({Model})",
            "{Capacity}~ {Type}~ {Brand}~ {Model}~ - {Material}~ {Lid}~ - {Color}",
        ],
    },
    Category {
        name: "Backpack",
        price: 48.0,
        schema: &[
            ("Brand", 0.96, &[]),
            (
                "Model",
                0.55,
                &[
                    "<Nomad|Campus|Ridge|Metro|Atlas> <20|25|30|40|II|Roll>",
                    "<Nomad|Campus|Metro|Atlas>",
                    "<BP|DP>-<##|###>",
                ],
            ),
            (
                "Type",
                0.9,
                &["<Laptop|Hiking|School|Travel|Diaper|Cycling|Mini> <Backpack|Bag>", "<Rucksack|Daypack|Backpack>"],
            ),
            ("Capacity", 0.6, &["<15|18|20|25|28|30|35|45> <L|Liter|litres>", "<20|25|30|40>L"]),
            ("Laptop size", 0.4, &["<13|14|15.6|16|17.3> <inch|Inch|in> Laptop", "<13|15.6|17>\""]),
            ("Material", 0.4, &["<Nylon|Canvas|Polyester|Leather|Recycled PET|Ripstop|Waxed Canvas>"]),
            (
                "Feature",
                0.45,
                &[
                    "<Waterproof|Water Resistant|Anti-Theft|Expandable|Lightweight>",
                    "with <USB Port|Rain Cover|Shoe Compartment>",
                ],
            ),
            ("Color", 0.7, COLORS),
        ],
        layouts: &[
            "{Brand}~ {Model}~ {Type}~, {Capacity}~, {Laptop size}~, {Feature}~, {Material}~, {Color}",
            "{Brand}~ {Feature}~ {Type}~ {Capacity}~ {Color}~ ({Laptop size})~ {Material}~ {Model}",
            "{Type}~ {Laptop size}~ {Brand}~ {Model}~ {Material}~ {Feature}~ - {Color}~, {Capacity}",
        ],
    },
    Category {
        name: "Pet Food",
        price: 26.0,
        schema: &[
            ("Brand", 0.97, &[]),
            (
                "Species",
                0.85,
                &["<Dog|Cat|Puppy|Kitten|Rabbit|Hamster>", "<Small Breed|Large Breed> Dog", "Indoor Cat"],
            ),
            ("Item form", 0.8, &["<Dry|Wet|Canned|Freeze Dried> Food", "<Treats|Biscuits|Kibble|Pellets|Chews>"]),
            (
                "Flavor",
                0.75,
                &[
                    "<Chicken|Beef|Salmon|Lamb|Turkey|Duck|Tuna>",
                    "<Chicken|Lamb|Salmon|Turkey> & <Rice|Vegetables|Sweet Potato|Peas>",
                    "<Chicken|Ocean Fish> Recipe",
                ],
            ),
            ("Life stage", 0.45, &["<Adult|Senior|Junior|All Life Stages>", "<1|7>+ Years"]),
            ("Specialty", 0.45, &["<Grain Free|Hypoallergenic|High Protein|Weight Control|Sensitive Stomach|Organic>"]),
            ("Net content", 0.8, WEIGHTS),
            ("Pack size", 0.35, PACKS),
        ],
        layouts: &[
            "{Brand}~ {Specialty}~ {Life stage}~ {Species}~ {Item form}~, {Flavor}~, {Net content}~ ({Pack size})",
            "{Brand}~ {Species}~ {Item form}~ {Flavor}~ {Life stage}~ {Specialty}~ {Net content}~, {Pack size}",
            "{Brand}~ {Flavor}~ {Item form}~ for {Species}~, {Life stage}~, {Specialty}~ - {Net content}~, {Pack size}",
        ],
    },
    Category {
        name: "Shampoo",
        price: 10.0,
        schema: &[
            ("Brand", 0.96, &[]),
            (
                "Item form",
                0.9,
                &["<Shampoo|Conditioner|Shampoo Bar|Dry Shampoo|Hair Mask>", "2-in-1 Shampoo & Conditioner"],
            ),
            (
                "Benefit",
                0.7,
                &[
                    "<Moisturizing|Volumizing|Anti-Dandruff|Repair|Color Protect|Curl Defining|Clarifying|Smoothing>",
                    "Hair <Growth|Repair>",
                ],
            ),
            ("Hair type", 0.45, &["<Dry|Oily|Curly|Fine|Damaged|Colored|All> Hair", "All Hair Types"]),
            (
                "Scent",
                0.5,
                &[
                    "<Coconut|Argan Oil|Lavender|Rosemary|Tea Tree|Aloe Vera|Green Apple>",
                    "<Rosemary|Coconut|Almond> & <Mint|Honey|Shea>",
                    "Unscented",
                ],
            ),
            ("Specialty", 0.4, &["<Sulfate Free|Vegan|Paraben Free|Cruelty Free|Silicone Free>"]),
            ("Volume", 0.8, FLUIDS),
            ("Pack size", 0.25, PACKS),
        ],
        layouts: &[
            "{Brand}~ {Benefit}~ {Item form}~ for {Hair type}~, {Scent}~, {Specialty}~, {Volume}~ ({Pack size})",
            "{Brand}~ {Scent}~ {Item form}~, {Benefit}~, {Hair type}~, {Volume}~, {Specialty}~, {Pack size}",
            "{Brand}~ {Specialty}~ {Benefit}~ {Item form}~ {Scent}~ {Volume}~ - {Hair type}~ {Pack size}",
        ],
    },
    Category {
        name: "Kitchen Knife",
        price: 32.0,
        schema: &[
            ("Brand", 0.95, &[]),
            (
                "Series",
                0.4,
                &["<Kaito|Forge|Classic|Essential|Prime|Artisan> Series", "<Forge|Kaito|Artisan> <I|II|100|67>"],
            ),
            (
                "Type",
                0.95,
                &[
                    "<Chef's|Bread|Paring|Utility|Santoku|Boning|Carving> Knife",
                    "<Steak Knives|Knife Block Set|Cleaver|Kitchen Shears>",
                ],
            ),
            ("Blade length", 0.7, &["<3.5|5|6|7|8|10> <inch|Inch|in|-Inch>", "<9|13|15|18|20|24> cm", "<5|7|8>\""]),
            (
                "Material",
                0.55,
                &["<High Carbon|German|Damascus|Stainless> Steel", "<Ceramic|VG10|Stainless Steel|AUS-10>"],
            ),
            ("Handle", 0.4, &["<Pakkawood|Walnut|Olive Wood|G10|Rosewood|Ergonomic> Handle"]),
            ("Pack size", 0.35, PACKS),
            ("Color", 0.25, COLORS),
        ],
        layouts: &[
            "{Brand}~ {Series}~ {Blade length}~ {Type}~, {Material}~, {Handle}~, {Color}~ ({Pack size})",
            "{Brand}~ {Type}~ {Blade length}~ {Material}~ {Handle}~ {Series}~, {Pack size}~, {Color}",
            "{Type}~ {Blade length}~ - {Brand}~ {Series}~, {Material}~ with {Handle}~, {Color}~ {Pack size}",
        ],
    },
];
